"""What Gymnasium is told when it is imported: that `quantail/Market-v0` exists. Imports nothing heavy."""


def register() -> None:
    """Make the id known; called by Gymnasium through an entry point, or by hand."""
    from gymnasium.envs.registration import register as known
    from gymnasium.envs.registration import registry

    if "quantail/Market-v0" not in registry:
        known(
            "quantail/Market-v0",
            entry_point="quantail.market.single:SingleMarket",
            vector_entry_point="quantail.market.single:vector",
        )

"""Tells Gymnasium that `quantail/Market-v0` exists, when imported; nothing else is loaded before one is made.

`import quantail` imports this where Gymnasium was imported before. In any order, `import quantail.market.ids` does, and so does
`gymnasium.make("quantail.market.ids:quantail/Market-v0")`, which takes the module along.
"""

from gymnasium.envs.registration import register, registry

if "quantail/Market-v0" not in registry:
    register(
        "quantail/Market-v0",
        entry_point="quantail.market.single:SingleMarket",
        vector_entry_point="quantail.market.single:vector",
    )

"""The register of known bugs: whatever went wrong in systems like this one, and the tests that would see it again.

A row names the mistake and its guards as `file::test`. Every guard must exist; whoever renames one mends its row. G: gradients,
losses, critic; R: recurrent state; E: environments; U: optimizers; V: noise of gradients; X: engineering.
A new bug gets a row with the commit that mends it.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

REGISTER: dict[str, tuple[str, ...]] = {
    # gradients, losses, critic
    "G1": (
        "the critic never learned: what it had said was overwritten without gradient before the loss read it",
        "test_losses::test_each_loss_reaches_its_own_and_all_together_everything",
        "nets/test_agent::test_all_losses_together_move_every_parameter",
    ),
    "G4": (
        "targets of one row were broadcast against all others",
        "functional/test_quantile::test_each_row_has_its_own_targets",
        "test_losses::test_critic_losses_equal_a_loop_over_rows",
    ),
    "G5": (
        "the quantile loss learned 1 − τ",
        "functional/test_quantile::test_quantiles_learned_on_skewed_data_come_out_in_order",
    ),
    "G6": (
        "the loss was divided by κ",
        "functional/test_quantile::test_loss_of_one_error_by_hand",
    ),
    "G7": (
        "value clipping clipped the targets",
        "regressions/test_value_clipping::test_each_critic_is_clipped_alone_and_targets_never",
    ),
    "G8": (
        "the larger of two means, not the mean of the larger",
        "regressions/test_value_clipping::test_each_critic_is_clipped_alone_and_targets_never",
    ),
    "G9": (
        "three losses were compared where two belong",
        "regressions/test_value_clipping::test_each_critic_is_clipped_alone_and_targets_never",
    ),
    "G10": (
        "clipping a law on atoms had no gradient, or no effect",
        "functional/test_value_clipping::test_gradients_reach_the_logits_and_never_the_old_law",
        "functional/test_value_clipping::test_a_shifted_law_stops_at_the_radius",
    ),
    "G11": (
        "an atom that hits the grid went to its neighbour, or was lost",
        "functional/test_categorical::test_an_atom_that_hits_the_grid_goes_there_whole",
        "functional/test_categorical::test_projection_conserves_mass_and_inside_the_support_the_mean",
    ),
    "G12": (
        "atoms of one axis failed with more than one row",
        "functional/test_categorical::test_atoms_of_one_axis_serve_every_row",
    ),
    "G13": (
        "clipping each quantile around the mean collapsed the law",
        "functional/test_value_clipping::test_per_quantile_leaves_unchanged_predictions_their_spread",
    ),
    "G14": (
        "clipping the variance widened it",
        "functional/test_value_clipping::test_mean_and_variance_shrinks_and_never_widens",
    ),
    "G15": (
        "the old variance was a guess",
        "functional/test_value_clipping::test_quantiles_against_a_loop",
        "functional/test_value_clipping::test_laws_on_a_grid_against_a_loop",
    ),
    "G16": (
        "the clip radius was in other units than the values",
        "regressions/test_value_clipping::test_the_clipped_share_does_not_depend_on_the_unit_of_rewards",
    ),
    "G17": (
        "twins were clipped around a common output",
        "regressions/test_value_clipping::test_each_critic_is_clipped_alone_and_targets_never",
    ),
    "G18": (
        "twins were averaged before the maximum",
        "regressions/test_value_clipping::test_each_critic_is_clipped_alone_and_targets_never",
    ),
    "G19": (
        "the second critic was ignored in advantages, last value or bootstrap",
        "test_estimate::test_the_law_of_all_critics_in_raw_units",
        "test_estimate::test_advantages_are_those_of_the_slow_sums",
    ),
    "G20": (
        "value clipping was switched off behind the user's back",
        "test_loop::test_a_changed_setting_changes_the_weights",
        "test_loop::test_every_setting_is_flipped_or_has_its_reason",
    ),
    "G21": (
        "seven of ten combinations of clipping, critic and twins crashed",
        "regressions/test_value_clipping::test_every_combination_trains_on_ragged_episodes",
    ),
    "G22": (
        "explained variance counted rows twice",
        "test_statistics::test_figures_of_the_critic",
    ),
    "G23": (
        "raw means met normalised quantiles",
        "regressions/test_value_clipping::test_the_clipped_share_does_not_depend_on_the_unit_of_rewards",
        "test_estimate::test_targets_are_in_the_critics_scale",
    ),
    "G24": (
        "the logarithm of a softmax lost dead atoms",
        "functional/test_categorical::test_even_a_dead_atom_gets_its_full_gradient",
    ),
    "G26": (
        "a temperature of 0 gave NaN",
        "test_config::test_nonsense_is_refused_and_named",
        "functional/test_policy_refusals::test_is_refused_by_name",
    ),
    "G27": (
        "cloning weights were cut after the exponential had overflowed",
        "functional/test_policy::test_awr_clamps_the_exponent_so_that_nothing_overflows",
    ),
    "G28": (
        "the log-ratio's clamp killed gradients, or its absence overflowed",
        "functional/test_policy::test_clamps_as_numpy_does",
        "test_losses::test_a_ratio_beyond_the_clamp_is_counted_before_it_is_clamped",
    ),
    "G29": (
        "a NaN hid behind the clamp",
        "functional/test_policy::test_nothing_overflows_and_nan_does_not_hide",
        "test_update::test_a_broken_number_in_the_batch_is_blamed_on_the_loss_it_enters",
    ),
    "G30": (
        "a NaN loss reached the weights",
        "test_update::test_a_step_that_is_not_finite_changes_nothing_and_names_what_broke",
    ),
    "G31": (
        "a skipped part shrank the gradient, and the step was taken all the same",
        "test_update::test_a_step_that_is_not_finite_changes_nothing_and_names_what_broke",
        "test_update::test_the_parts_means_are_over_the_weight_of_the_whole_step",
    ),
    "G32": (
        "the entropy of several actions was summed twice",
        "functional/test_actions::test_one_number_per_row_and_each_action_once",
    ),
    "G33": (
        "accumulation multiplied the learning rate",
        "test_update::test_many_small_parts_are_one_batch",
    ),
    "G34": (
        "the KL of narrow Gaussians was not finite",
        "functional/test_policy::test_kl_gaussian_is_finite_down_to_1e_minus_10",
    ),
    "G35": (
        "losses were summed over rows that are none",
        "test_losses::test_rows_without_weight_may_hold_anything",
        "test_losses::test_policy_losses_equal_a_loop_over_rows",
    ),
    "G36": (
        "the KL counted rows that are none",
        "test_losses::test_rows_without_weight_may_hold_anything",
        "test_update::test_the_kl_is_exact_and_measured_before_the_step",
    ),
    "G37": (
        "the KL was taken the other way round",
        "test_update::test_the_kl_is_exact_and_measured_before_the_step",
    ),
    "G38": (
        "the number of epochs only shrank",
        "test_control::test_epochs_shrink_when_stopped_and_recover_when_quiet",
    ),
    "G39": (
        "the controller's proportional part was integrated",
        "test_control::test_the_penalty_answers_in_proportion",
    ),
    "G42": (
        "CVaR was biased at the edges of its cells",
        "functional/test_readout::test_a_gaussian_is_read_exactly_at_any_levels",
        "functional/test_readout::test_weights_against_adaptive_quadrature",
    ),
    "G43": (
        "CVaR took crossed quantiles for sorted ones",
        "functional/test_readout::test_crossed_quantiles_are_sorted_first",
    ),
    "G45": (
        "normalised advantages amplified noise",
        "functional/test_advantages::test_where_there_is_no_signal_there_is_no_advantage",
        "functional/test_advantages::test_rewards_of_any_scale_still_train",
        "functional/test_advantages::test_a_broken_advantage_that_counts_is_never_taken_for_no_signal",
    ),
    "G46": (
        "a cut-off episode learned from the next one",
        "functional/test_returns::test_a_truncated_episode_learns_nothing_from_the_next_one",
        "envs/test_foreign_rollout::test_a_perfect_value_function_has_no_advantages",
    ),
    "G47": (
        "what was not finite was not named",
        "functional/test_checks::test_refuses_and_says_why",
        "test_loop::test_a_void_step_says_what_was_wrong_with_the_batch",
        "regressions/test_engineering::test_rewards_of_any_size_break_no_weight",
    ),
    "G48": (
        "the bootstrap at a time limit came from a stale or twice advanced memory",
        "test_rollout::test_the_bootstrap_is_the_value_of_the_final_observation_with_the_memory_of_its_episode",
    ),
    "G49": (
        "rollout and update saw different scales of the return",
        "test_normaliser::test_a_refresh_of_the_scale_keeps_what_the_critics_say",
        "test_estimate::test_targets_are_in_the_critics_scale",
    ),
    "G50": (
        "variances over n and n − 1, ratios of nothing, figures from clipped predictions",
        "functional/test_advantages::test_divides_by_n_not_by_n_minus_1",
        "test_statistics::test_figures_of_the_critic",
        "test_statistics::test_moments_of_nothing_and_variance_of_a_constant_are_not_known",
    ),
    "G51": (
        "the critic's loss moved the actor although they were said to be apart",
        "nets/test_agent::test_each_loss_moves_its_own_and_nothing_else",
    ),
    "G52": (
        "targets were bounded in another scale than the loss",
        "test_estimate::test_targets_are_in_the_critics_scale",
    ),
    # recurrent state
    "R1": (
        "the memory was stored one row late: the ratio was not 1 before any update",
        "test_replay::test_replay_before_any_update_is_exact",
        "test_replay::test_the_replay_notices_what_it_should",
    ),
    "R2": (
        "values came from a memory that had moved on",
        "test_replay::test_replay_before_any_update_is_exact",
    ),
    "R3": (
        "memories leaked over episode ends, or were emptied for all",
        "nets/test_agent::test_a_start_forgets_everything_and_only_a_start_forgets",
    ),
    "R4": (
        "an empty memory was one for a single environment",
        "nets/test_memory::test_initial_memory_is_empty_and_has_the_right_shape",
    ),
    "R5": (
        "several environments were read as one sequence",
        "nets/test_agent::test_environments_do_not_see_each_other",
        "test_update::test_environments_learn_together_as_alone",
    ),
    "R6": (
        "the first observation after a reset was zeros",
        "envs/test_foreign_rollout::test_collected_rows_are_those_of_the_plain_environments",
    ),
    "R7": (
        "observation statistics moved within a rollout",
        "test_loop::test_observation_moments_are_frozen_in_a_rollout_and_those_of_all_valid_rows_after_it",
    ),
    # environments
    "E5": (
        "a step returned the row of the reset once more",
        "envs/test_foreign_rollout::test_rows_are_those_of_the_plain_environments",
    ),
    "E21": (
        "figures that are not finite spoiled means, or crashed",
        "test_statistics::test_figures_of_the_environment_are_means_over_valid_rows_and_bad_ones_are_counted",
    ),
    "E30": (
        "masks of environments inside vectors were silently none",
        "envs/test_foreign_rollout::test_only_allowed_choices_are_made_from_the_first_row_on",
        "envs/test_foreign_rollout::test_masks_of_subprocesses",
    ),
    "E31": (
        "an environment's process that died was waited for without end",
        "envs/test_gymnasium_in::test_a_process_that_dies_is_no_endless_wait",
    ),
    "E33": (
        "observations came in raw units",
        "test_loop::test_observation_moments_are_frozen_in_a_rollout_and_those_of_all_valid_rows_after_it",
    ),
    # engineering
    "X1": (
        "the library replaced functions of torch",
        "regressions/test_engineering::test_importing_changes_nothing_in_torch",
        "test_loop::test_training_leaves_the_global_stream_alone",
    ),
    "V1": (
        "a constant gradient was called noisy, spread over elements was called noise",
        "optim/test_variance::test_a_constant_gradient_has_no_noise",
        "optim/test_variance::test_the_mean_of_each_element_and_its_variance_are_unbiased",
    ),
    "V2": (
        "noise that cancels in the mean of a tensor was not seen",
        "optim/test_variance::test_the_ratio_is_the_true_one",
    ),
    "V3": (
        "old parameters were measured after new ones had taken their place; what was known was lost with a file",
        "optim/test_variance::test_new_parameters_are_measured_instead_of_the_old_ones",
        "optim/test_variance::test_a_scaler_that_was_saved_goes_on_bit_for_bit",
        "optim/test_joint::test_what_a_file_holds_goes_on_bit_for_bit",
    ),
    "V4": (
        "the factor stood at its floor, and blocked learning",
        "optim/test_variance::test_the_factor_by_hand",
    ),
    "V5": (
        "the gradient was measured after it had been scaled and clipped",
        "optim/test_joint::test_the_gradient_is_measured_as_it_came_and_the_clip_comes_last",
    ),
    "V6": (
        "averages started at the first value and were corrected for starting at 0",
        "optim/test_variance::test_the_mean_of_each_element_and_its_variance_are_unbiased",
    ),
    "V7": (
        "a shorter gradient left the noise of the step as it was",
        "optim/test_variance::test_a_shortened_step_is_a_step_at_that_rate_decay_and_noise_included",
        "optim/test_variance::test_noise_in_units_of_the_step_is_shorter_with_the_gradient_and_fixed_noise_is_not",
    ),
    "U1": (
        "steps were twice as long as the learning rate says",
        "contracts/test_optimizers::test_a_neutral_gate_is_torchs_own_step",
    ),
    "U2": (
        "where every utility was negative, the most harmful weights were protected most",
        "contracts/test_optimizers::test_the_more_useful_a_weight_the_less_it_moves_whatever_the_signs",
    ),
    "U3": (
        "utilities of 0 gave 0/0",
        "contracts/test_optimizers::test_nothing_known_is_a_plain_step",
        "contracts/test_optimizers::test_gradients_of_any_size_break_nothing",
    ),
    "U4": (
        "a corrected utility over an uncorrected range: 98 % of the gates were shut or wide open at the first step",
        "contracts/test_optimizers::test_the_first_step_saturates_nothing_but_in_the_reference",
    ),
    "U5": (
        "a learning rate that was set was not the one used",
        "optim/test_schedule::test_after_every_path_the_group_has_the_rate",
        "optim/test_schedule::test_from_the_config_to_the_weights",
    ),
    "U6": (
        "the critics' own learning rate reached no group",
        "optim/test_schedule::test_the_critics_group_holds_what_is_the_critics_alone",
    ),
    "U7": (
        "settings of the optimizer were thrown away",
        "optim/test_joint::test_the_name_chooses_and_the_settings_arrive",
        "checkpoint/test_checkpoint::test_moments_come_from_the_file_and_settings_from_the_config",
    ),
    "U8": (
        "a step without any gradient crashed",
        "contracts/test_optimizers::test_what_has_no_gradient_stands_still_and_counts_its_own_steps",
    ),
    "X2": (
        "tests left stubs in place of modules",
        "regressions/test_engineering::test_no_test_puts_anything_in_the_place_of_a_module",
    ),
    "X5": (
        "options that nobody reads",
        "test_loop::test_every_setting_is_flipped_or_has_its_reason",
    ),
    "X6": (
        "what was documented did not exist",
        "test_readme::test_examples_run_and_print_what_they_say",
        "tools/test_docs::test_api_page_is_up_to_date",
    ),
}


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("bug", REGISTER)
def test_every_guard_exists(bug):
    says, *guards = REGISTER[bug]
    assert says
    assert guards
    for guard in guards:
        file, name = guard.split("::")
        assert name.startswith("test_")
        assert name in names_in(file), f"{bug}: {guard} is gone; name the test that now sees it"


def test_what_the_page_on_training_promises_has_its_tests():
    """Every file and test that the table at its end names."""
    page = (TESTS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("## What shows it")[2].splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        file, tokens = "", re.findall(r"`([^`]+)`", row.split("|")[2])
        assert tokens, row
        for token in tokens:
            path, _, name = token.partition("::")
            file = path or file  # `::test_b` stands behind `test_file.py::test_a`
            assert (TESTS / file).exists(), row
            assert not name or name in names_in(file.removesuffix(".py")), token

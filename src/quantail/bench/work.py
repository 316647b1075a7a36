"""The least that each phase of an iteration has to compute and to move, counted from the sizes.

A product of weights costs 2 operations a weight and row forward, 4 backward, but 2 where what came in is the observation, which
wants no gradient. Every output of a layer is written once; in training it is read again, and so is its gradient. Weights, and
what fits into a cache between two operations, are free.
"""

from quantail.bench.ceilings import Work
from quantail.bench.scene import Sizes
from quantail.nets.agent import Agent

NUMBER = 4  # bytes
FLAGS = 64  # bytes of a row beside observation, critics and memory: action, reward, figures, flags
PAIR = 8  # operations of a quantile and a target: difference, two clamps, two products, three sums


def work_of(sizes: Sizes, agent: Agent) -> dict[str, Work]:
    """By phase, for a whole iteration."""
    shapes = [p.shape for p in agent.parameters() if p.ndim == 2]
    weights, outputs = sum(rows * columns for rows, columns in shapes), sum(rows for rows, _ in shapes)
    seen = shapes[0][1]
    first = sum(rows * columns for rows, columns in shapes if columns == seen)
    said = 2 * sizes.quantiles
    row = NUMBER * (seen + said) + FLAGS
    memory = NUMBER * 2 * sizes.hidden
    update = Work(6 * weights - 2 * first + PAIR * said * sizes.quantiles, 3 * row + 4 * NUMBER * outputs)
    return {
        "collect": Work(2.0 * weights * sizes.rows, (row + 2 * memory + 2 * NUMBER * outputs) * sizes.rows),
        "estimate": Work(20.0 * sizes.quantiles * sizes.rows, NUMBER * (said + 5 * sizes.quantiles) * sizes.rows),
        "update": Work(float(update.flops * sizes.rows * sizes.epochs), float(update.bytes * sizes.rows * sizes.epochs)),
    }

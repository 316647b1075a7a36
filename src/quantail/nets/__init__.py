"""The networks: encoder, memory, heads, and the agent that wires them."""

from quantail.nets.agent import Agent, Memory, Outputs, select_envs
from quantail.nets.memory import memory_statistics

__all__ = ["Agent", "Memory", "Outputs", "memory_statistics", "select_envs"]

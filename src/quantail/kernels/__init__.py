"""Memory over whole sequences: LSTM, GRU and minimal GRU with episodes that start inside, and gradients written by hand."""

from quantail.kernels.gru import gru_sequence
from quantail.kernels.lstm import lstm_sequence
from quantail.kernels.scan import linear_scan, mingru_sequence

__all__ = ["gru_sequence", "linear_scan", "lstm_sequence", "mingru_sequence"]

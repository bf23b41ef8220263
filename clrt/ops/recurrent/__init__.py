"""The recurrent ops RNN, LSTM, GRU and DynamicQuantizeLSTM."""

"""The model that is trained: weights, adapters, hardware, memory."""

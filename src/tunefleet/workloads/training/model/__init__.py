"""The trained model: weights, adapters, hardware, memory."""

"""Endpoints: requests of OpenAI clients, relayed to the workers that have the model loaded."""

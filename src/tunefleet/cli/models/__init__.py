"""Commands on what a task reads and makes: data, models, artifacts, a talk with a model."""

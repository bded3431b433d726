"""Commands on inputs and outputs of tasks: data, models, artifacts, chat."""

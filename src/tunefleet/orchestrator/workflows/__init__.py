"""Documents of several tasks: submitted, fanned out into parts, and put together again."""

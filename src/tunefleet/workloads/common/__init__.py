"""What many workloads need: the job and its outputs, models and files of a hub, the checks of what is brought."""

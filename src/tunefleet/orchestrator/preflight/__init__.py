"""What is looked at before a training is submitted: its dataset, its model, the memory that it will take."""

"""A workload on many ranks: what each is, what it does of the rows, how torchrun starts them."""

"""Workers: how they enroll, register, exchange messages, and what people decide about them."""

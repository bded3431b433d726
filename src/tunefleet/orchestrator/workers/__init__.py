"""Workers: enrollment, registration, message exchange and administration."""

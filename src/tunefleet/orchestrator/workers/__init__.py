"""Workers: enrollment, registration, message exchange, gangs and administration."""

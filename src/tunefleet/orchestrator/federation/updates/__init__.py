"""Updates that workers of a federation send: taken in, checked, weighed and accepted."""

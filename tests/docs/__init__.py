"""The documentation: its code runs, its tables have everything that the code has, and `help` shows what is meant."""

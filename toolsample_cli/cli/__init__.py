"""The command line: one thin module a command; no rule of the method lives here."""

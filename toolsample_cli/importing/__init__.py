"""Raw rows of any known format to tasks; one file per family of formats."""

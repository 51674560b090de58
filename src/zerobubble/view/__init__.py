"""How is a timeline shown? One file for each kind of picture."""

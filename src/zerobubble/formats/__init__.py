"""How do schedules enter and leave this package? One file for each format."""

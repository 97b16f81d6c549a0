"""What an operator may change, as data: the settings table and the shell's start file."""

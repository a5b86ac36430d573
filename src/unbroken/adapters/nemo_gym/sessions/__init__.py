"""What of a server is state: captured, sealed, installed and digested, one session at a time."""

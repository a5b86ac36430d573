"""The live pages: `unbroken ui`. What is needed beyond the package itself is imported where a server is started."""

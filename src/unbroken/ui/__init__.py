"""Pages for a browser: one file that holds everything, or a live app. Needs the extra `report`, or `ui`."""

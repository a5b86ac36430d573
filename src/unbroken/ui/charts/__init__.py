"""Charts of a run, as data for plotly.js: `curves`, `costs`, `makeup`. Stable: `Chart`, and the functions that return one."""

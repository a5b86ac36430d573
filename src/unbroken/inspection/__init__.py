"""What a run holds, for whoever shows it: the command, the report, the pages. Nothing here prints or changes a run."""

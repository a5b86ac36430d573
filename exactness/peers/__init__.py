"""What other libraries bring back: the same small trainings, saved in the middle by each one's own means.

A training runs in three processes. `whole` is undisturbed. `first` saves in the middle by the library's own means and
ends; `second` is a new process that loads and goes on. Every step of the environment leaves a line in a file, and the end
leaves its weights. The figures are the first step after the resume that differs from the undisturbed run, and how far the
weights are apart at the end.

Not promised: that nothing better can be written with a library. What its documentation calls its checkpoint is used, with
everything registered that it takes.
"""

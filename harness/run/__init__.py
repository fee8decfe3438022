"""One run: options are resolved, inputs opened, the engine run, and the document written."""

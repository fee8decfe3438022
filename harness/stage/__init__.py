"""What a run needs beside its model: machine, memory and engine, one file for each kind."""

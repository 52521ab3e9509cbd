"""Code that runs in the worker processes of Ray: actors, tasks, and the API inside of them."""

"""A worker process: its main loop, its requests to the driver, and the forkserver that it is forked from."""

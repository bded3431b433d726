"""The upload guide's protocol: data chunks, signed links, jobs and their progress."""

"""Ray: connecting, resources, the mailbox between processes, submitting jobs."""

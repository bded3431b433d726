"""What members fetch and upload: chunks of data, signed links, the guide's steps."""

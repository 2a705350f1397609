"""What every command needs and no paper is about: files, processes, ranks, flags."""

from harness import process

if process.is_command():
    process.prepare()

"""What this machine and this installation are, what does not work, and what to do about it.

    for finding in examine():
        print(finding.status, finding.name, finding.value, finding.advice)

No check needs a network, and none can take the caller down: checks run in a process of their own.
"""

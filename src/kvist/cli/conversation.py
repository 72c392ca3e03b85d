"""A conversation with branches. All branches share whatever they have in common in the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.errors import StateError

Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    """Messages of each branch; ``current`` is the one being talked in. Owner: the chat command."""

    system: str | None = None
    branches: list[list[Message]] = field(default_factory=lambda: [[]])
    current: int = 0

    @property
    def messages(self) -> list[Message]:
        """The current branch, system message first."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.branches[self.current]]

    @property
    def turns(self) -> int:
        """Exchanges in the current branch."""
        return sum(m["role"] == "user" for m in self.branches[self.current])

    def say(self, role: str, content: str) -> None:
        """Append a message to the current branch."""
        self.branches[self.current].append({"role": role, "content": content})

    def undo(self) -> str:
        """Take back the last exchange; returns what the user had said. Raises ``StateError`` when there is none."""
        branch = self.branches[self.current]
        asked = [i for i, m in enumerate(branch) if m["role"] == "user"]
        if not asked:
            raise StateError("there is nothing to undo", remedy="say something first")
        words = branch[asked[-1]]["content"]
        del branch[asked[-1] :]
        return words

    def fork(self) -> int:
        """Copy the current branch and move to the copy; returns its number."""
        self.branches.append(list(self.branches[self.current]))
        self.current = len(self.branches) - 1
        return self.current

    def switch(self, branch: int) -> None:
        """Move to another branch. Raises ``StateError`` for one that does not exist."""
        if not 0 <= branch < len(self.branches):
            raise StateError(f"there is no branch {branch}", remedy=f"branches are 0 to {len(self.branches) - 1}")
        self.current = branch

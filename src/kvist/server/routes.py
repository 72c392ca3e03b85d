"""All endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from kvist.server import admin
from kvist.server.anthropic import messages
from kvist.server.desk import Desk
from kvist.server.openai import chat, completions, models, responses, tokenize


def routers(desk: Desk) -> list[APIRouter]:
    """One router per file."""
    return [
        admin.router(desk),
        models.router(desk),
        chat.router(desk),
        completions.router(desk),
        responses.router(desk),
        tokenize.router(desk),
        messages.router(desk),
    ]

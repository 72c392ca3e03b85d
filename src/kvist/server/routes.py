"""All endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from kvist.server import admin
from kvist.server.anthropic import messages
from kvist.server.desk import Desk
from kvist.server.observe import metrics, requests
from kvist.server.openai import chat, completions, models, responses, tokenize
from kvist.server.sessions import endpoints as sessions


def routers(desk: Desk) -> list[APIRouter]:
    """One router per file."""
    return [
        admin.router(desk),
        metrics.router(desk, per_tenant=desk.config.tenant_metrics),
        requests.router(desk),
        models.router(desk),
        chat.router(desk),
        completions.router(desk),
        responses.router(desk),
        tokenize.router(desk),
        messages.router(desk),
        sessions.router(desk),
    ]

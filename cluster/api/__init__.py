"""The OpenAI protocol: request and response bodies, errors, streaming.

Knows HTTP and what crosses the border to a replica (`replica.messages`); does not know Ray, Redis or how a replica is
chosen.
"""

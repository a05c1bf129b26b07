"""The rehearsal cloud: Google's APIs on loopback, for the real gcloud and client libraries.

One process per state directory is a forward proxy that ends TLS itself with a certificate authority
of its own. Real host names are used, so nothing has to be overridden and nothing can leave: a host
that is not served here is refused. Every Cloud Run service made in it answers at its own URL, with
the simulator behind it. `launcher` starts it; everything else here is its inside.

What it says is modelled on Google's documents, on texts people have published, and on what gcloud
528 sends (2026-11-30). It is proof of what we send and of how we take an answer, not of how Google
answers.
"""

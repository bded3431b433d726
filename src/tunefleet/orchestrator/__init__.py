"""The verbs of the server: submit, place, exchange, finish, publish, read.

    context            what every verb is given: store, files, clock, settings, and the state of each domain
    bootstrap          opens all of that
    tasks, workflows   one task from its submit to its end; documents of several
    scheduling         which task goes to which worker, and why one waits
    workers            how workers enroll, register and exchange messages
    telemetry          journals, points, logs, events, and how people watch them live
    storage            artifacts, uploads, links; what is damaged, and what is deleted
    access             keys, projects and quotas, the audit log
    federation         rounds and versions of an adapter that many workers train
    campaigns          cycles of trainings that go on by themselves, and the models that come of them
    notifications      who is told what, and its delivery
    training_protocol  the backend of training agents
    clusters           nodes of Slurm, Ray and clouds for tasks that name an engine
    chat, preflight    turns with a model; what is looked at before a training is submitted
    compat             routes of the documents that others' clients speak
    ha                 several servers on one database
    observability      figures for Prometheus, spans of tasks

A verb checks who asks, decides with the pure modules (`lifecycle`, `placement`, `spec`) and stores the outcome in one
operation. It knows rows and messages, neither HTTP nor processes; what it refuses, it says with a `TunefleetError`.
"""

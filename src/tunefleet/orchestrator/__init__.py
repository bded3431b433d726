"""The operations of the server: submit, schedule, exchange, finish, publish, read.

    context            the server context: store, files, clock, settings, and the state of each domain
    bootstrap          opens the context
    tasks, workflows   the life of one task; workflow files with several
    scheduling         which task goes to which worker, and pending reasons
    workers            enrollment, registration, message exchange
    telemetry          journals, points, logs, events, live feeds
    storage            artifacts, uploads, signed URLs, verification, garbage collection
    access             keys, projects and quotas, the audit log
    federation         rounds and versions of an adapter that many workers train
    campaigns          continuous training: cycles, and the models that they produce
    notifications      subscriptions and delivery
    training_protocol  the backend of training agents
    clusters           nodes of Slurm, Ray and clouds for tasks that name an engine
    chat, preflight    chat sessions with a model; checks before a run is submitted
    compat             routes of third-party protocols
    ha                 several servers on one database
    observability      Prometheus metrics, task spans

An operation checks permissions, decides with the pure modules (`lifecycle`, `placement`, `spec`) and stores the outcome
in one transaction. It knows rows and messages, neither HTTP nor processes, and refuses with a `TunefleetError`.
"""

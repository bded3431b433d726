"""The nouns of the API, for both clients: workflows, tasks, artifacts, workers, federations, campaigns and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunefleet.client import (
    campaign_files,
    flows,
    routes,
    routes_campaigns,
    routes_chat,
    routes_enrollment,
    routes_federations,
    routes_notify,
    routes_projects,
    transfer,
)
from tunefleet.client.verb import (
    Awaited,
    AwaitedTask,
    Blocking,
    BlockingTask,
    Iteration,
    TaskIteration,
    TaskVerb,
    Verb,
)

if TYPE_CHECKING:
    from tunefleet.client.transport import AsyncTransport, Transport
    from tunefleet.schemas.api import TaskView, WorkflowDetail


class WorkflowVerbs:
    """What can be done with workflows."""

    validate = Verb(routes.validate)
    create = Verb(routes.create_workflow)
    list = Verb(routes.list_workflows)
    iterate = Iteration(flows.iterate_workflows)
    get = Verb(routes.get_workflow)
    wait = Verb(flows.wait_for_workflow)
    cancel = Verb(routes.cancel_workflow)
    retry = Verb(routes.retry_workflow)
    remove = Verb(routes.remove_workflow)


class TaskVerbs:
    """What can be done with tasks."""

    list = Verb(routes.list_tasks)
    iterate = Iteration(flows.iterate_tasks)
    get = Verb(routes.get_task)
    why = Verb(routes.why)
    wait = Verb(flows.wait_for_task)
    cancel = Verb(routes.cancel_task)
    pause = Verb(routes.pause_task)
    pause_and_wait = Verb(flows.pause_and_wait)
    resume = Verb(routes.resume_task)
    stop = Verb(routes.stop_task)
    command = Verb(routes.command_task)
    commands = Verb(routes.list_commands)
    get_command = Verb(routes.get_command)
    wait_for_command = Verb(flows.wait_for_command)
    checkpoints = Verb(routes.checkpoints)
    retry = Verb(routes.retry_task)
    clone = Verb(routes.clone_task)
    remove = Verb(routes.remove_task)
    metrics = Verb(routes.metrics)
    follow_metrics = Iteration(flows.follow_metrics)
    log = Verb(routes.log)
    follow_log = Iteration(flows.follow_log)
    fetch_output = Verb(flows.fetch_output)
    result = Verb(routes.get_result)
    files = Verb(routes.result_files)
    fetch_file = Verb(transfer.fetch_result_file)
    get_chat = Verb(routes_chat.get_chat)
    end_chat = Verb(routes_chat.end_chat)
    chat = Iteration(routes_chat.chat)


class EventVerbs:
    """What happened, and what happens."""

    list = Verb(routes.list_events)
    follow = Iteration(flows.follow_events)


class ArtifactVerbs:
    """Files that are kept on the server under a digest."""

    list = Verb(routes.list_artifacts)
    iterate = Iteration(flows.iterate_artifacts)
    get = Verb(routes.get_artifact)
    push = Verb(transfer.push)
    fetch = Verb(transfer.fetch)
    remove = Verb(routes.remove_artifact)


class WorkerVerbs:
    """The machines that run tasks."""

    list = Verb(routes.list_workers)
    get = Verb(routes.get_worker)
    tell = Verb(routes.tell_worker)
    get_command = Verb(routes.worker_command)
    wait_for_command = Verb(flows.wait_for_worker_command)
    cordon = Verb(routes.cordon_worker)
    uncordon = Verb(routes.uncordon_worker)
    drain = Verb(routes.drain_worker)
    elastic = Verb(routes.set_elastic)
    invite = Verb(routes_enrollment.invite)
    invitations = Verb(routes_enrollment.list_invitations)
    withdraw = Verb(routes_enrollment.withdraw)
    remove = Verb(routes.remove_worker)


class KeyVerbs:
    """API keys."""

    list = Verb(routes.list_keys)
    create = Verb(routes.create_key)
    revoke = Verb(routes.revoke_key)


class ProjectVerbs:
    """Projects: who shares the fleet, and what each may use of it."""

    list = Verb(routes_projects.list_projects)
    get = Verb(routes_projects.get_project)
    create = Verb(routes_projects.create_project)
    change = Verb(routes_projects.change_project)
    archive = Verb(routes_projects.archive_project)
    restore = Verb(routes_projects.restore_project)


class NotificationVerbs:
    """Who is told what of your tasks, and what they were told."""

    list = Verb(routes_notify.list_notifications)
    channels = Verb(routes_notify.list_channels)
    create_channel = Verb(routes_notify.create_channel)
    get_channel = Verb(routes_notify.get_channel)
    change_channel = Verb(routes_notify.change_channel)
    remove_channel = Verb(routes_notify.remove_channel)
    test_channel = Verb(routes_notify.test_channel)


class FederationVerbs:
    """Federations: many workers train one adapter, each on its own data."""

    create = Verb(routes_federations.create_federation)
    list = Verb(routes_federations.list_federations)
    get = Verb(routes_federations.get_federation)
    start = Verb(routes_federations.start_federation)
    pause = Verb(routes_federations.pause_federation)
    cancel = Verb(routes_federations.cancel_federation)
    remove = Verb(routes_federations.remove_federation)
    token = Verb(routes_federations.federation_token)
    replace_token = Verb(routes_federations.replace_federation_token)
    updates = Verb(routes_federations.list_updates)
    rounds = Verb(routes_federations.list_rounds)
    versions = Verb(routes_federations.list_versions)
    version = Verb(routes_federations.get_version)
    newest = Verb(routes_federations.newest_version)
    rollback = Verb(routes_federations.roll_back)
    change_member = Verb(routes_federations.change_member)


class CampaignVerbs:
    """Campaigns: training that goes on by itself, chunk by chunk."""

    apply = Verb(routes_campaigns.apply_campaigns)
    send = Verb(campaign_files.send)
    list = Verb(routes_campaigns.list_campaigns)
    get = Verb(routes_campaigns.get_campaign)
    start = Verb(routes_campaigns.start_campaign)
    pause = Verb(routes_campaigns.pause_campaign)
    resume = Verb(routes_campaigns.resume_campaign)
    stop = Verb(routes_campaigns.stop_campaign)
    retry = Verb(routes_campaigns.retry_campaign)
    remerge = Verb(routes_campaigns.remerge_campaign)
    rollback = Verb(routes_campaigns.roll_back_campaign)
    cycles = Verb(routes_campaigns.list_cycles)
    lineage = Verb(routes_campaigns.campaign_lineage)
    log = Verb(routes_campaigns.campaign_log)
    follow_log = Iteration(routes_campaigns.follow_campaign_log)
    follow = Iteration(routes_campaigns.follow_campaign)
    watch = Iteration(routes_campaigns.watch_campaign)


class ModelVerbs:
    """Models that campaigns have made, and which version is promoted."""

    list = Verb(routes_campaigns.list_models)
    get = Verb(routes_campaigns.get_model)
    promote = Verb(routes_campaigns.promote_model)
    rollback = Verb(routes_campaigns.roll_back_model)


class RunVerbs:
    """One submitted task, from submit to its files."""

    refresh = TaskVerb(routes.get_task)
    wait = TaskVerb(flows.wait_for_task)
    cancel = TaskVerb(routes.cancel_task)
    pause = TaskVerb(routes.pause_task)
    pause_and_wait = TaskVerb(flows.pause_and_wait)
    resume = TaskVerb(routes.resume_task)
    stop = TaskVerb(routes.stop_task)
    command = TaskVerb(routes.command_task)
    checkpoints = TaskVerb(routes.checkpoints)
    metrics = TaskVerb(routes.metrics)
    follow_metrics = TaskIteration(flows.follow_metrics)
    log = TaskVerb(routes.log)
    follow_log = TaskIteration(flows.follow_log)
    artifacts = TaskVerb(flows.task_artifacts)
    fetch = TaskVerb(flows.fetch_output)


class Workflows(WorkflowVerbs, Blocking):
    """Workflows, synchronously."""


class AsyncWorkflows(WorkflowVerbs, Awaited):
    """Workflows, asynchronously."""


class Tasks(TaskVerbs, Blocking):
    """Tasks, synchronously."""


class AsyncTasks(TaskVerbs, Awaited):
    """Tasks, asynchronously."""


class Events(EventVerbs, Blocking):
    """Events, synchronously."""


class AsyncEvents(EventVerbs, Awaited):
    """Events, asynchronously."""


class Artifacts(ArtifactVerbs, Blocking):
    """Artifacts, synchronously."""


class AsyncArtifacts(ArtifactVerbs, Awaited):
    """Artifacts, asynchronously."""


class Workers(WorkerVerbs, Blocking):
    """Workers, synchronously."""


class AsyncWorkers(WorkerVerbs, Awaited):
    """Workers, asynchronously."""


class Keys(KeyVerbs, Blocking):
    """API keys, synchronously."""


class AsyncKeys(KeyVerbs, Awaited):
    """API keys, asynchronously."""


class Projects(ProjectVerbs, Blocking):
    """Projects, synchronously."""


class AsyncProjects(ProjectVerbs, Awaited):
    """Projects, asynchronously."""


class Notifications(NotificationVerbs, Blocking):
    """Channels and notifications, synchronously."""


class AsyncNotifications(NotificationVerbs, Awaited):
    """Channels and notifications, asynchronously."""


class Federations(FederationVerbs, Blocking):
    """Federations, synchronously."""


class AsyncFederations(FederationVerbs, Awaited):
    """Federations, asynchronously."""


class Campaigns(CampaignVerbs, Blocking):
    """Campaigns, synchronously."""


class AsyncCampaigns(CampaignVerbs, Awaited):
    """Campaigns, asynchronously."""


class Models(ModelVerbs, Blocking):
    """Models, synchronously."""


class AsyncModels(ModelVerbs, Awaited):
    """Models, asynchronously."""


class Run(RunVerbs, BlockingTask):
    """What `Client.submit` returns: the workflow and its task, the first one if there are several.

    Args:
        transport: The client's.
        workflow: The server's answer.
    """

    def __init__(self, transport: Transport, workflow: WorkflowDetail) -> None:
        super().__init__(transport)
        self.workflow = workflow
        self.task_id = self.task.id

    @property
    def task(self) -> TaskView:
        """The task as it was at submit; `refresh()` asks again."""
        return self.workflow.tasks[0]


class AsyncRun(RunVerbs, AwaitedTask):
    """What `AsyncClient.submit` returns: the workflow and its task, the first one if there are several.

    Args:
        transport: The client's.
        workflow: The server's answer.
    """

    def __init__(self, transport: AsyncTransport, workflow: WorkflowDetail) -> None:
        super().__init__(transport)
        self.workflow = workflow
        self.task_id = self.task.id

    @property
    def task(self) -> TaskView:
        """The task as it was at submit; `refresh()` asks again."""
        return self.workflow.tasks[0]

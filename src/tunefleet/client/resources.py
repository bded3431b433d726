"""Resources of the API for both clients: workflows, tasks, artifacts, workers, federations, campaigns and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunefleet.client import campaign_files, flows, transfer
from tunefleet.client.routes import (
    campaign_routes,
    chat_routes,
    federation_routes,
    notification_routes,
    project_routes,
    workflow_routes,
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
    """Methods of workflows."""

    validate = Verb(workflow_routes.validate)
    create = Verb(workflow_routes.create_workflow)
    list = Verb(workflow_routes.list_workflows)
    iterate = Iteration(flows.iterate_workflows)
    get = Verb(workflow_routes.get_workflow)
    wait = Verb(flows.wait_for_workflow)
    cancel = Verb(workflow_routes.cancel_workflow)
    retry = Verb(workflow_routes.retry_workflow)
    remove = Verb(workflow_routes.remove_workflow)


class TaskVerbs:
    """Methods of tasks."""

    list = Verb(workflow_routes.list_tasks)
    iterate = Iteration(flows.iterate_tasks)
    get = Verb(workflow_routes.get_task)
    why = Verb(workflow_routes.why)
    wait = Verb(flows.wait_for_task)
    cancel = Verb(workflow_routes.cancel_task)
    pause = Verb(workflow_routes.pause_task)
    pause_and_wait = Verb(flows.pause_and_wait)
    resume = Verb(workflow_routes.resume_task)
    stop = Verb(workflow_routes.stop_task)
    command = Verb(workflow_routes.command_task)
    commands = Verb(workflow_routes.list_commands)
    get_command = Verb(workflow_routes.get_command)
    wait_for_command = Verb(flows.wait_for_command)
    checkpoints = Verb(workflow_routes.checkpoints)
    retry = Verb(workflow_routes.retry_task)
    clone = Verb(workflow_routes.clone_task)
    remove = Verb(workflow_routes.remove_task)
    metrics = Verb(workflow_routes.metrics)
    follow_metrics = Iteration(flows.follow_metrics)
    log = Verb(workflow_routes.log)
    follow_log = Iteration(flows.follow_log)
    fetch_output = Verb(flows.fetch_output)
    result = Verb(workflow_routes.get_result)
    files = Verb(workflow_routes.result_files)
    fetch_file = Verb(transfer.fetch_result_file)
    get_chat = Verb(chat_routes.get_chat)
    end_chat = Verb(chat_routes.end_chat)
    chat = Iteration(chat_routes.chat)


class EventVerbs:
    """Methods of events."""

    list = Verb(workflow_routes.list_events)
    follow = Iteration(flows.follow_events)


class ArtifactVerbs:
    """Methods of artifacts: files that the server stores under a digest."""

    list = Verb(workflow_routes.list_artifacts)
    iterate = Iteration(flows.iterate_artifacts)
    get = Verb(workflow_routes.get_artifact)
    push = Verb(transfer.push)
    fetch = Verb(transfer.fetch)
    remove = Verb(workflow_routes.remove_artifact)


class WorkerVerbs:
    """Methods of workers: the machines that run tasks."""

    list = Verb(workflow_routes.list_workers)
    get = Verb(workflow_routes.get_worker)
    tell = Verb(workflow_routes.tell_worker)
    get_command = Verb(workflow_routes.worker_command)
    wait_for_command = Verb(flows.wait_for_worker_command)
    cordon = Verb(workflow_routes.cordon_worker)
    uncordon = Verb(workflow_routes.uncordon_worker)
    drain = Verb(workflow_routes.drain_worker)
    elastic = Verb(workflow_routes.set_elastic)
    invite = Verb(workflow_routes.invite)
    invitations = Verb(workflow_routes.list_invitations)
    withdraw = Verb(workflow_routes.withdraw)
    remove = Verb(workflow_routes.remove_worker)


class KeyVerbs:
    """Methods of API keys."""

    list = Verb(workflow_routes.list_keys)
    create = Verb(workflow_routes.create_key)
    revoke = Verb(workflow_routes.revoke_key)


class ProjectVerbs:
    """Methods of projects, which share the fleet within their quotas."""

    list = Verb(project_routes.list_projects)
    get = Verb(project_routes.get_project)
    create = Verb(project_routes.create_project)
    change = Verb(project_routes.change_project)
    archive = Verb(project_routes.archive_project)
    restore = Verb(project_routes.restore_project)


class NotificationVerbs:
    """Methods of notification channels and deliveries."""

    list = Verb(notification_routes.list_notifications)
    channels = Verb(notification_routes.list_channels)
    create_channel = Verb(notification_routes.create_channel)
    get_channel = Verb(notification_routes.get_channel)
    change_channel = Verb(notification_routes.change_channel)
    remove_channel = Verb(notification_routes.remove_channel)
    test_channel = Verb(notification_routes.test_channel)


class FederationVerbs:
    """Methods of federations: workers train one adapter, each on its own data."""

    create = Verb(federation_routes.create_federation)
    list = Verb(federation_routes.list_federations)
    get = Verb(federation_routes.get_federation)
    start = Verb(federation_routes.start_federation)
    pause = Verb(federation_routes.pause_federation)
    cancel = Verb(federation_routes.cancel_federation)
    remove = Verb(federation_routes.remove_federation)
    token = Verb(federation_routes.federation_token)
    replace_token = Verb(federation_routes.replace_federation_token)
    updates = Verb(federation_routes.list_updates)
    rounds = Verb(federation_routes.list_rounds)
    versions = Verb(federation_routes.list_versions)
    version = Verb(federation_routes.get_version)
    newest = Verb(federation_routes.newest_version)
    rollback = Verb(federation_routes.roll_back)
    change_member = Verb(federation_routes.change_member)


class CampaignVerbs:
    """Methods of campaigns: continuous training, one chunk of data per cycle."""

    apply = Verb(campaign_routes.apply_campaigns)
    send = Verb(campaign_files.send)
    list = Verb(campaign_routes.list_campaigns)
    get = Verb(campaign_routes.get_campaign)
    start = Verb(campaign_routes.start_campaign)
    pause = Verb(campaign_routes.pause_campaign)
    resume = Verb(campaign_routes.resume_campaign)
    stop = Verb(campaign_routes.stop_campaign)
    retry = Verb(campaign_routes.retry_campaign)
    remerge = Verb(campaign_routes.remerge_campaign)
    rollback = Verb(campaign_routes.roll_back_campaign)
    cycles = Verb(campaign_routes.list_cycles)
    lineage = Verb(campaign_routes.campaign_lineage)
    log = Verb(campaign_routes.campaign_log)
    follow_log = Iteration(campaign_routes.follow_campaign_log)
    follow = Iteration(campaign_routes.follow_campaign)
    watch = Iteration(campaign_routes.watch_campaign)


class ModelVerbs:
    """Methods of models: versions that campaigns produce, and which one is promoted."""

    list = Verb(campaign_routes.list_models)
    get = Verb(campaign_routes.get_model)
    promote = Verb(campaign_routes.promote_model)
    rollback = Verb(campaign_routes.roll_back_model)


class RunVerbs:
    """Methods of one submitted task, from submission to its files."""

    refresh = TaskVerb(workflow_routes.get_task)
    wait = TaskVerb(flows.wait_for_task)
    cancel = TaskVerb(workflow_routes.cancel_task)
    pause = TaskVerb(workflow_routes.pause_task)
    pause_and_wait = TaskVerb(flows.pause_and_wait)
    resume = TaskVerb(workflow_routes.resume_task)
    stop = TaskVerb(workflow_routes.stop_task)
    command = TaskVerb(workflow_routes.command_task)
    checkpoints = TaskVerb(workflow_routes.checkpoints)
    metrics = TaskVerb(workflow_routes.metrics)
    follow_metrics = TaskIteration(flows.follow_metrics)
    log = TaskVerb(workflow_routes.log)
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
    """Result of `Client.submit`: the workflow and its task, the first one if there are several.

    Args:
        transport: The client's transport.
        workflow: The server's response.
    """

    def __init__(self, transport: Transport, workflow: WorkflowDetail) -> None:
        super().__init__(transport)
        self.workflow = workflow
        self.task_id = self.task.id

    @property
    def task(self) -> TaskView:
        """The task at submission; `refresh()` returns its current state."""
        return self.workflow.tasks[0]


class AsyncRun(RunVerbs, AwaitedTask):
    """Result of `AsyncClient.submit`: the workflow and its task, the first one if there are several.

    Args:
        transport: The client's transport.
        workflow: The server's response.
    """

    def __init__(self, transport: AsyncTransport, workflow: WorkflowDetail) -> None:
        super().__init__(transport)
        self.workflow = workflow
        self.task_id = self.task.id

    @property
    def task(self) -> TaskView:
        """The task at submission; `refresh()` returns its current state."""
        return self.workflow.tasks[0]

"""Resources of the API for both clients: workflows, tasks, artifacts, workers, federations, campaigns and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunefleet.client import campaign_files, flows, transfer
from tunefleet.client.routes import (
    administration_routes,
    campaign_routes,
    chat_routes,
    federation_routes,
    serving_routes,
    sweep_routes,
    workflow_routes,
)
from tunefleet.client.verb import (
    ApiMethod,
    Awaited,
    AwaitedTask,
    Blocking,
    BlockingTask,
    Iteration,
    TaskIteration,
    TaskVerb,
)

if TYPE_CHECKING:
    from tunefleet.client.transport import AsyncTransport, Transport
    from tunefleet.schemas.api import TaskView, WorkflowDetail


class WorkflowVerbs:
    """Methods of workflows."""

    validate = ApiMethod(workflow_routes.validate)
    create = ApiMethod(workflow_routes.create_workflow)
    list = ApiMethod(workflow_routes.list_workflows)
    iterate = Iteration(flows.iterate_workflows)
    get = ApiMethod(workflow_routes.get_workflow)
    wait = ApiMethod(flows.wait_for_workflow)
    cancel = ApiMethod(workflow_routes.cancel_workflow)
    retry = ApiMethod(workflow_routes.retry_workflow)
    remove = ApiMethod(workflow_routes.remove_workflow)


class TaskVerbs:
    """Methods of tasks."""

    list = ApiMethod(workflow_routes.list_tasks)
    iterate = Iteration(flows.iterate_tasks)
    get = ApiMethod(workflow_routes.get_task)
    why = ApiMethod(workflow_routes.why)
    wait = ApiMethod(flows.wait_for_task)
    cancel = ApiMethod(workflow_routes.cancel_task)
    pause = ApiMethod(workflow_routes.pause_task)
    pause_and_wait = ApiMethod(flows.pause_and_wait)
    resume = ApiMethod(workflow_routes.resume_task)
    stop = ApiMethod(workflow_routes.stop_task)
    command = ApiMethod(workflow_routes.command_task)
    commands = ApiMethod(workflow_routes.list_commands)
    get_command = ApiMethod(workflow_routes.get_command)
    wait_for_command = ApiMethod(flows.wait_for_command)
    checkpoints = ApiMethod(workflow_routes.checkpoints)
    retry = ApiMethod(workflow_routes.retry_task)
    clone = ApiMethod(flows.clone)
    edit = ApiMethod(workflow_routes.edit_task)
    tag = ApiMethod(workflow_routes.tag_tasks)
    remove = ApiMethod(workflow_routes.remove_task)
    metrics = ApiMethod(workflow_routes.metrics)
    follow_metrics = Iteration(flows.follow_metrics)
    log = ApiMethod(workflow_routes.log)
    follow_log = Iteration(flows.follow_log)
    fetch_output = ApiMethod(flows.fetch_output)
    result = ApiMethod(workflow_routes.get_result)
    files = ApiMethod(workflow_routes.result_files)
    fetch_file = ApiMethod(transfer.fetch_result_file)
    get_chat = ApiMethod(chat_routes.get_chat)
    end_chat = ApiMethod(chat_routes.end_chat)
    chat = Iteration(chat_routes.chat)


class EventVerbs:
    """Methods of events."""

    list = ApiMethod(workflow_routes.list_events)
    follow = Iteration(flows.follow_events)


class ArtifactVerbs:
    """Methods of artifacts: files that the server stores under a digest."""

    list = ApiMethod(workflow_routes.list_artifacts)
    iterate = Iteration(flows.iterate_artifacts)
    get = ApiMethod(workflow_routes.get_artifact)
    push = ApiMethod(transfer.push)
    fetch = ApiMethod(transfer.fetch)
    remove = ApiMethod(workflow_routes.remove_artifact)


class WorkerVerbs:
    """Methods of workers: the machines that run tasks."""

    list = ApiMethod(workflow_routes.list_workers)
    get = ApiMethod(workflow_routes.get_worker)
    tell = ApiMethod(workflow_routes.tell_worker)
    get_command = ApiMethod(workflow_routes.worker_command)
    wait_for_command = ApiMethod(flows.wait_for_worker_command)
    cordon = ApiMethod(workflow_routes.cordon_worker)
    uncordon = ApiMethod(workflow_routes.uncordon_worker)
    drain = ApiMethod(workflow_routes.drain_worker)
    elastic = ApiMethod(workflow_routes.set_elastic)
    invite = ApiMethod(workflow_routes.invite)
    invitations = ApiMethod(workflow_routes.list_invitations)
    withdraw = ApiMethod(workflow_routes.withdraw)
    remove = ApiMethod(workflow_routes.remove_worker)


class EndpointVerbs:
    """Methods of endpoints: models behind an OpenAI-compatible API."""

    list = ApiMethod(serving_routes.list_endpoints)
    get = ApiMethod(serving_routes.get_endpoint)
    stop = ApiMethod(serving_routes.stop_endpoint)


class KeyVerbs:
    """Methods of API keys."""

    list = ApiMethod(workflow_routes.list_keys)
    create = ApiMethod(workflow_routes.create_key)
    revoke = ApiMethod(workflow_routes.revoke_key)


class ProjectVerbs:
    """Methods of projects, which share the fleet within their quotas."""

    list = ApiMethod(administration_routes.list_projects)
    get = ApiMethod(administration_routes.get_project)
    create = ApiMethod(administration_routes.create_project)
    change = ApiMethod(administration_routes.change_project)
    archive = ApiMethod(administration_routes.archive_project)
    restore = ApiMethod(administration_routes.restore_project)


class NotificationVerbs:
    """Methods of notification channels and deliveries."""

    list = ApiMethod(administration_routes.list_notifications)
    channels = ApiMethod(administration_routes.list_channels)
    create_channel = ApiMethod(administration_routes.create_channel)
    get_channel = ApiMethod(administration_routes.get_channel)
    change_channel = ApiMethod(administration_routes.change_channel)
    remove_channel = ApiMethod(administration_routes.remove_channel)
    test_channel = ApiMethod(administration_routes.test_channel)


class FederationVerbs:
    """Methods of federations: workers train one adapter, each on its own data."""

    create = ApiMethod(federation_routes.create_federation)
    list = ApiMethod(federation_routes.list_federations)
    get = ApiMethod(federation_routes.get_federation)
    start = ApiMethod(federation_routes.start_federation)
    pause = ApiMethod(federation_routes.pause_federation)
    cancel = ApiMethod(federation_routes.cancel_federation)
    remove = ApiMethod(federation_routes.remove_federation)
    token = ApiMethod(federation_routes.federation_token)
    replace_token = ApiMethod(federation_routes.replace_federation_token)
    updates = ApiMethod(federation_routes.list_updates)
    rounds = ApiMethod(federation_routes.list_rounds)
    versions = ApiMethod(federation_routes.list_versions)
    version = ApiMethod(federation_routes.get_version)
    newest = ApiMethod(federation_routes.newest_version)
    rollback = ApiMethod(federation_routes.roll_back)
    change_member = ApiMethod(federation_routes.change_member)


class CampaignVerbs:
    """Methods of campaigns: continuous training, one chunk of data per cycle."""

    apply = ApiMethod(campaign_routes.apply_campaigns)
    send = ApiMethod(campaign_files.send)
    list = ApiMethod(campaign_routes.list_campaigns)
    get = ApiMethod(campaign_routes.get_campaign)
    start = ApiMethod(campaign_routes.start_campaign)
    pause = ApiMethod(campaign_routes.pause_campaign)
    resume = ApiMethod(campaign_routes.resume_campaign)
    stop = ApiMethod(campaign_routes.stop_campaign)
    retry = ApiMethod(campaign_routes.retry_campaign)
    remerge = ApiMethod(campaign_routes.remerge_campaign)
    rollback = ApiMethod(campaign_routes.roll_back_campaign)
    cycles = ApiMethod(campaign_routes.list_cycles)
    lineage = ApiMethod(campaign_routes.campaign_lineage)
    log = ApiMethod(campaign_routes.campaign_log)
    follow_log = Iteration(campaign_routes.follow_campaign_log)
    follow = Iteration(campaign_routes.follow_campaign)
    watch = Iteration(campaign_routes.watch_campaign)


class SweepVerbs:
    """Methods of sweeps: searches over hyperparameters, whose trials are runs."""

    list = ApiMethod(sweep_routes.list_sweeps)
    get = ApiMethod(sweep_routes.get_sweep)
    wait = ApiMethod(flows.wait_for_sweep)
    importance = ApiMethod(sweep_routes.sweep_importance)
    stop = ApiMethod(sweep_routes.stop_sweep)
    remove = ApiMethod(sweep_routes.remove_sweep)


class ModelVerbs:
    """Methods of models: versions that campaigns produce, and which one is promoted."""

    list = ApiMethod(campaign_routes.list_models)
    get = ApiMethod(campaign_routes.get_model)
    promote = ApiMethod(campaign_routes.promote_model)
    rollback = ApiMethod(campaign_routes.roll_back_model)


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


class Endpoints(EndpointVerbs, Blocking):
    """Endpoints, synchronously."""


class AsyncEndpoints(EndpointVerbs, Awaited):
    """Endpoints, asynchronously."""


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


class Sweeps(SweepVerbs, Blocking):
    """Sweeps, synchronously."""


class AsyncSweeps(SweepVerbs, Awaited):
    """Sweeps, asynchronously."""


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

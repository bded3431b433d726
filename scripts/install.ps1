# Install the Tunefleet training agent for this user on Windows, as a scheduled task that runs at logon.
#
#   $env:TUNEFLEET_BACKEND_URL = "https://…"; $env:TUNEFLEET_BACKEND_KEY = "wak_…"; .\install.ps1 [-NoStart]
#
# INSTALL_DIR  folder of the environment and the agent (default %LOCALAPPDATA%\Tunefleet\training-agent)
# PYTHON_BIN   Python interpreter, 3.11 or newer (default python)
# PACKAGE      package for pip (default: the checkout of this script; or the server's wheel:
#              (irm $env:TUNEFLEET_BACKEND_URL/install))
param([switch]$NoStart)
$ErrorActionPreference = "Stop"

$installDir = if ($env:INSTALL_DIR) { $env:INSTALL_DIR } else { Join-Path $env:LOCALAPPDATA "Tunefleet\training-agent" }
$python = if ($env:PYTHON_BIN) { $env:PYTHON_BIN } else { "python" }
$package = if ($env:PACKAGE) { $env:PACKAGE } else { "$(Split-Path $PSScriptRoot)[train]" }
$taskName = "TunefleetTrainingAgent"

& $python -c "import sys; sys.exit(sys.version_info < (3, 11))"
if ($LASTEXITCODE -ne 0) { throw "$python is not here or older than 3.11; name another with PYTHON_BIN" }

New-Item -ItemType Directory -Force -Path $installDir | Out-Null
$venv = Join-Path $installDir "venv"
Write-Host "-> creating $venv"
& $python -m venv $venv
$venvPython = Join-Path $venv "Scripts\python.exe"
Write-Host "-> installing $package"
& $venvPython -m pip install --quiet --upgrade $package
if ($LASTEXITCODE -ne 0) { throw "pip failed" }

# The agent reads agent.env in TUNEFLEET_HOME. Windows does not report whose process connects, so it needs a key.
$agentHome = if ($env:TUNEFLEET_HOME) { $env:TUNEFLEET_HOME } else { Join-Path $HOME ".tunefleet" }
New-Item -ItemType Directory -Force -Path $agentHome | Out-Null
$names = "BACKEND_URL", "BACKEND_KEY", "AGENT_ID", "AGENT_KEY", "AGENT_HOST", "AGENT_PORT", "MODELS_DIR", "DATASETS_DIR",
    "CHECKPOINTS_DIR", "LOGS_DIR", "MAX_GPU_MEMORY_FRACTION", "MIXED_PRECISION", "MAX_JOBS" | ForEach-Object { "TUNEFLEET_$_" }
$names += "BACKEND_URL", "API_KEY", "AGENT_ID", "AGENT_KEY", "HOST", "PORT", "MODELS_DIR", "DATASETS_DIR",
    "CHECKPOINTS_DIR", "LOGS_DIR", "GPU_MEMORY_FRACTION", "ENABLE_MIXED_PRECISION", "MAX_CONCURRENT_JOBS"
$lines = @($names | ForEach-Object { $value = [Environment]::GetEnvironmentVariable($_); if ($value) { "$_=$value" } })
if (-not ($lines -match "^(TUNEFLEET_)?AGENT_KEY=")) { $lines += "TUNEFLEET_AGENT_KEY=" + [guid]::NewGuid().ToString("N") + [guid]::NewGuid().ToString("N") }
$envFile = Join-Path $agentHome "agent.env"
Set-Content -Path $envFile -Value $lines -Encoding utf8
icacls $envFile /inheritance:r /grant:r "$($env:USERNAME):F" | Out-Null

$action = New-ScheduledTaskAction -Execute $venvPython -Argument "-m tunefleet.agent" -WorkingDirectory $installDir
$trigger = New-ScheduledTaskTrigger -AtLogOn -User $env:USERNAME
$settings = New-ScheduledTaskSettingsSet -RestartCount 999 -RestartInterval (New-TimeSpan -Minutes 1) -ExecutionTimeLimit 0
Register-ScheduledTask -TaskName $taskName -Action $action -Trigger $trigger -Settings $settings -Force | Out-Null
if (-not $NoStart) { Start-ScheduledTask -TaskName $taskName }
Write-Host "-> $taskName is registered; its settings are in $envFile"

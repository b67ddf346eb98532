"""Why a registry refuses: the numbers and sentences that Confluent's clients look for."""

from __future__ import annotations


class RegistryRefusalError(Exception):
    """An answer other than 200: `code` begins with the HTTP status, as in 40401."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


def subject_not_found(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryRefusalError:
    return RegistryRefusalError(40402, f"Version {version} not found.")


def schema_not_found(number: object = None) -> RegistryRefusalError:
    return RegistryRefusalError(40403, "Schema not found" if number is None else f"Schema {number} not found")


def subject_soft_deleted(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryRefusalError:
    return RegistryRefusalError(
        40406, f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryRefusalError:
    return RegistryRefusalError(
        40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_subject_config(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, details: list[str]) -> RegistryRefusalError:
    return RegistryRefusalError(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
        f"details: [{', '.join(details)}]",
    )


def invalid_schema(reason: object) -> RegistryRefusalError:
    return RegistryRefusalError(42201, f"Invalid schema: {reason}")


def invalid_version(version: str) -> RegistryRefusalError:
    return RegistryRefusalError(
        42202,
        f"The specified version '{version}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_compatibility() -> RegistryRefusalError:
    return RegistryRefusalError(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive",
    )


def invalid_mode() -> RegistryRefusalError:
    return RegistryRefusalError(42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.")


def not_permitted(reason: str) -> RegistryRefusalError:
    return RegistryRefusalError(42205, reason)


def reference_exists(subject: str, version: int) -> RegistryRefusalError:
    return RegistryRefusalError(
        42206,
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    )


def invalid_subject(subject: str) -> RegistryRefusalError:
    return RegistryRefusalError(42208, f"The specified subject '{subject}' is not a valid.")


def schema_too_large(size: int, size_max: int) -> RegistryRefusalError:
    return RegistryRefusalError(42209, f"The schema has {size} characters, and schema.max.size is {size_max}")


def context_not_empty(context: str) -> RegistryRefusalError:
    return RegistryRefusalError(42211, f"The specified context '{context}' is not empty.")


def store_failed(reason: object) -> RegistryRefusalError:
    return RegistryRefusalError(50001, f"Error in the backend data store: {reason}")


def timed_out(what: str) -> RegistryRefusalError:
    return RegistryRefusalError(50002, f"{what} timed out")


def forwarding_failed(reason: object) -> RegistryRefusalError:
    return RegistryRefusalError(50003, f"Error while forwarding the request to the leader: {reason}")


def unknown_leader() -> RegistryRefusalError:
    return RegistryRefusalError(50004, "Leader not known.")

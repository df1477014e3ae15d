"""Prints the template as SAM hands it to CloudFormation.

Before that, what nobody sees of the template with its defaults: with deployments in steps, no resource waits for itself; and a parameter that a
function reads by itself gives that function a new version, so that its alias moves on."""

import copy
import graphlib
import json
import re
import sys

from samcli.lib.cfn_language_extensions.sam_integration import expand_language_extensions
from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform


class NoManagedPolicies:
    """Every permission is written out in the template: there are no names to look up."""

    def load(self):
        return {}


def processed(template, parameters):
    """By SAM's own code."""
    template = copy.deepcopy(template)
    template["Globals"]["Function"]["CodeUri"] = "s3://bucket/key"
    return transform(template, parameters, NoManagedPolicies())


def with_values(parameters):
    """The template with the values of parameters put in, as CloudFormation's `AWS::LanguageExtensions` does."""
    return expand_language_extensions(copy.deepcopy(template), parameters, enabled=True).expanded_template


def references(node):
    """The names of everything that a part of a template refers to."""
    if isinstance(node, list):
        for inner in node:
            yield from references(inner)
    if not isinstance(node, dict):
        return
    for key, inner in node.items():
        if key == "Ref":
            yield inner
        elif key == "Fn::GetAtt":
            yield inner.split(".")[0] if isinstance(inner, str) else inner[0]
        elif key == "DependsOn":
            yield from [inner] if isinstance(inner, str) else inner
        else:
            if key == "Fn::Sub":
                yield from re.findall(r"\$\{([\w:]+)", inner if isinstance(inner, str) else inner[0])
            yield from references(inner)


def versions(template):
    return {name for name, resource in template["Resources"].items() if resource["Type"] == "AWS::Lambda::Version"}


with open(sys.argv[1]) as file:
    template = yaml_parse(file.read())

# Functions that need a store of views exist.
stores = {"DatabaseHost": "db.example.com", "SearchEndpoint": "https://search.example.com", "SearchDomain": "search"}
stores = {name: value for name, value in stores.items() if name in template["Parameters"]}

if "CanaryDeployments" in template["Parameters"]:
    values = {**stores, "CanaryDeployments": "true"}
    resources = processed(with_values(values), values)["Resources"]
    if not any(resource["Type"] == "AWS::CodeDeploy::DeploymentGroup" for resource in resources.values()):
        sys.exit("CanaryDeployments makes no deployment group")
    try:
        graph = {name: set(references(resource)) & set(resources) for name, resource in resources.items()}
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as cycle:
        sys.exit(f"with CanaryDeployments, resources wait for each other: {' <- '.join(cycle.args[1])}")

before = versions(processed(with_values(stores), stores))
for name, parameter in template["Parameters"].items():
    readers = [
        function
        for function, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::Function" and name in references(resource["Properties"].get("Environment", {}))
    ]
    # As a text, which is how values are handed over.
    other = {**stores, name: str(parameter.get("MaxValue", "another"))}
    kept = versions(processed(with_values(other), other)) & before
    deaf = [function for function in readers if any(version.startswith(f"{function}Version") for version in kept)]
    if deaf:
        sys.exit(f"another {name} makes no new version of {', '.join(deaf)}")

print(json.dumps(processed(template, {}), indent=1))
